"""WEAVER: attention of a hot model on a cold model's device."""
