"""What annotations say: dims, shapes, signatures, and the objects whose fields bind them."""
