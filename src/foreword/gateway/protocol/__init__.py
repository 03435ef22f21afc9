"""The wire: typed requests and responses of every endpoint. Unknown fields are ignored, as every OpenAI server does."""
