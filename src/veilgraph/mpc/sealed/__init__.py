"""Secret values that nobody opens: holders compute on what is masked, and a dealer who knows only masks helps."""
