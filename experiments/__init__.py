"""Commands (`python -m experiments.<name>`) and the figures of the papers."""
