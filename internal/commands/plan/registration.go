package plan

import "math"

// Registration is the cost of registering memory with a device.
type Registration struct {
	Name    string  `json:"name"`
	Fixed   float64 `json:"fixed_s"`    // for each registration
	PerPage float64 `json:"per_page_s"` // for each page
	Page    int64   `json:"page_bytes"`
	Source  string  `json:"source"`
}

// The worked figures of the model's sources. The package's documentation says which of them hold.
const (
	workedFixed  = 25e-6   // s, chosen: gives 0.23 for 1 MiB at 100 Gb/s
	workedCPU    = 1e-6    // s for a page of 4 KiB
	workedGPU    = 1.85e-6 // s for a page of 64 KiB, chosen: gives 0.86 after 4 I/Os of 1 MiB at 100 Gb/s
	measuredPage = 0.098e-6
	pageCPU      = 4 << 10
	pageGPU      = 64 << 10
)

// Registrations are the costs that the model knows: two textbook cases, and the one that was measured.
func Registrations() []Registration {
	return []Registration{
		{"CPU memory, textbook", workedFixed, workedCPU, pageCPU, "1 us for each page of 4 KiB; 25 us fixed, chosen to give R = 0.23"},
		{"GPU memory, textbook", workedFixed, workedGPU, pageGPU, "64 KiB pages; 1.85 us each, chosen to give R = 0.86 after 4 I/Os"},
		{"page cache, measured", workedFixed, measuredPage, pageCPU, "24 ms/GB, read-only, populated, on one H200 host; the fixed cost is assumed"},
	}
}

// Time is the time of one registration, in seconds.
func (r Registration) Time(bytes int64) float64 {
	return r.Fixed + math.Ceil(float64(bytes)/float64(r.Page))*r.PerPage
}

// Efficiency is the part of the time that moves bytes: R of n I/Os through one registration over a link of so many GB/s.
func (r Registration) Efficiency(bytes int64, n, link float64) float64 {
	transfer := n * float64(bytes) / (link * 1e9)
	return transfer / (r.Time(bytes) + transfer)
}

// BreakEven is the least number of I/Os through one registration that reaches an efficiency below 1.
func (r Registration) BreakEven(bytes int64, link, efficiency float64) int {
	return max(1, int(math.Ceil(efficiency/(1-efficiency)*r.Time(bytes)*link*1e9/float64(bytes))))
}

// Surface is R over buffer size and I/Os for each registration, for one kind of memory and link.
type Surface struct {
	Registration Registration `json:"registration"`
	Link         float64      `json:"link_gb_per_s"`
	Sizes        []int64      `json:"sizes"`
	IOs          []int        `json:"ios"`
	R            [][]float64  `json:"r"` // [size][I/Os]
	BreakEven    []int        `json:"break_even_ios"`
	Wanted       float64      `json:"break_even_r"`
}

// surfaces computes R for every kind of memory, at 100 Gb/s and at a node's own link.
func surfaces(links []float64) []Surface {
	const wanted = 0.9
	var list []Surface
	for _, r := range Registrations() {
		for _, link := range links {
			s := Surface{Registration: r, Link: link, Wanted: wanted}
			for size := int64(64 << 10); size <= 1<<30; size <<= 2 {
				s.Sizes = append(s.Sizes, size)
			}
			for n := 1; n <= 1024; n <<= 1 {
				s.IOs = append(s.IOs, n)
			}
			for _, size := range s.Sizes {
				row := make([]float64, len(s.IOs))
				for i, n := range s.IOs {
					row[i] = r.Efficiency(size, float64(n), link)
				}
				s.R = append(s.R, row)
				s.BreakEven = append(s.BreakEven, r.BreakEven(size, link, wanted))
			}
			list = append(list, s)
		}
	}
	return list
}
