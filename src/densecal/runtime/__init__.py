"""What every package uses and none owns: registry, progress, worker processes, sharding, file locks. No NumPy here."""
