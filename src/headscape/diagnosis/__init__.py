"""Why a model breaks past its trained length, and which remedy mends it."""
