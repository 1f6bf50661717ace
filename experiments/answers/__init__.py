"""Questions that several runs answer: how much a fleet serves, and which fleet serves best."""
