"""Applying a rotation: the reference, faster implementations of it, their derivatives, and the choice between them."""
