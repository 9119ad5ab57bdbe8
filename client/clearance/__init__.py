"""Clearances between moving spheres and obstacles: measurement, table and chart."""
