"""`kvatlas trace`: analyses request traces, and makes new ones like them."""
