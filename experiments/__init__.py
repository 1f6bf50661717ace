"""Commands (`python -m experiments.<name>`) and the papers' figures."""
