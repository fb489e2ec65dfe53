"""Mutation testing of the judge: subtly wrong versions of correct kernels, and who notices them."""
