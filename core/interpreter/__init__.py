"""The transform interpreter: rules, boundaries, rides and lanes, and the plans that make a second call cheap."""
