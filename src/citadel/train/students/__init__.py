"""Students: models with fewer layers in the vector space of their teacher."""
