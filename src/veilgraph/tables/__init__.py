"""An organisation's own tables: reading, encoding, describing."""
