"""WEAVER on live models: executor, links and hosts of woven steps."""
