"""The paper's numbers and claims, and whether measurements support them."""
