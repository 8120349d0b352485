"""The page of an audit: `page` puts its sections in order, each other file is one of them."""
