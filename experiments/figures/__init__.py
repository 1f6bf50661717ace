"""Drawing of figures: tables in, matplotlib figures out."""
