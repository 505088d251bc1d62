"""From a name to a loaded `Infer`: the registry of backends, hot swap, and inputs for a model."""
