"""The targets of compilation: chips and topologies, present or not, and their speed."""
