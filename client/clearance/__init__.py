"""Measures clearances between moving spheres and obstacles, and shows them as a table or a chart."""
