package driver

// PageSize is the alignment of O_DIRECT, cuFile and mappings. It is the largest logical block in use, too.
const PageSize = 4096

// RoundUp gives the next multiple of unit.
func RoundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
