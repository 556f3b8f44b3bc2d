"""Prints the variables that a launcher gives to a rank, as one JSON line."""
import json
import os

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME",
         "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
print(json.dumps({name: value for name, value in os.environ.items() if name in NAMES or name.startswith("TORCH")}), flush=True)
