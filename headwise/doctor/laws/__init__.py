"""Laws: what a module with a contract does, whatever it is made of. The difference from a law names the mistake."""
