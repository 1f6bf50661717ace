"""Drawing only: tables in, matplotlib figures out. What is drawn is computed elsewhere."""
