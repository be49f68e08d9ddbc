"""Agreement between the ranks of a job: what each says, what all have agreed to, and who gives which bytes to whom."""
