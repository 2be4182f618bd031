"""Assemblies of parts."""
