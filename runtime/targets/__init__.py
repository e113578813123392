"""What programs are compiled for: chips and topologies, here or not, and how fast they may be."""
