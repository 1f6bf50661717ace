"""Live half of Tessera: a model whose layers' parts are placed over the devices of a worker."""
