"""Apply a rotation (label eq6): the reference, faster implementations, their derivatives, and the choice among them."""
