package driver

// PageSize is what O_DIRECT, cuFile and mappings are aligned to. It is the largest logical block in use, too.
const PageSize = 4096

// RoundUp gives the next multiple of unit.
func RoundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
