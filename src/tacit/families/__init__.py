"""Complete families on top of the core: method, proofs, commands and report parts of each in one package.

The core never imports a family. It finds them by the names in :mod:`tacit.names`.
"""
