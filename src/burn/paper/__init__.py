"""The paper's numbers and claims, and whether measurements bear them out."""
