"""Pictures of C2CServe's figures."""
