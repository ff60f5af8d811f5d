"""Length extrapolation: losses by named protocols, tables that say how they were measured."""
