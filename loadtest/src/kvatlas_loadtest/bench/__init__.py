"""`kvatlas bench`: how fast each part is, against what was asked of it."""
