"""The legend of shape letters that comments and docstrings use.

B  batch (rows)                 R  rows of a decoding step (sentences × beams)
S  source length, or keys       T  target length, or queries
L  any length                   D  model width (d_model)
H  query heads                  G  key/value heads
K  head width of q and k        W  head width of v (v_head_dim)
F  feed-forward width (d_ff)    V  vocabulary size
N  tokens, flattened            E  experts
"""
