"""The run side: keeps specs and starts runs, always under the submitting user's uid."""
