"""The best model in N bytes. Others import read_artifact; pack_scaled, fill_room, calibration_batches, Packed."""
