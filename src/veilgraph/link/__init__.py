"""The wire between parties: messages, codecs and the links that carry them."""
