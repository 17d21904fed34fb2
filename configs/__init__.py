"""Hydra configuration groups; a package only so that the files are installed with the scripts."""
