"""Live half of Tessera: layers' parts over the devices of a worker."""
