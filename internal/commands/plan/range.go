package plan

import "fmt"

// Range is a figure that is not known exactly.
type Range struct {
	Low  float64 `json:"low"`
	Mid  float64 `json:"mid"`
	High float64 `json:"high"`
}

// around is a figure with a relative uncertainty on both sides.
func around(x, part float64) Range { return Range{x * (1 - part), x, x * (1 + part)} }

// scale multiplies by a number that is not negative.
func (r Range) scale(by float64) Range { return Range{r.Low * by, r.Mid * by, r.High * by} }

// atLevels makes a range of three figures: level picks the low, mid or high one of others.
func atLevels(figure func(level func(Range) float64) float64) Range {
	return Range{
		figure(func(r Range) float64 { return r.Low }), figure(func(r Range) float64 { return r.Mid }), figure(func(r Range) float64 { return r.High }),
	}
}

// per gives the time of an amount at this rate: the highest rate takes the least.
func (r Range) per(amount float64) Range {
	return Range{amount / r.High, amount / r.Mid, amount / r.Low}
}

// add sums figures that are low and high together.
func (r Range) add(s Range) Range { return Range{r.Low + s.Low, r.Mid + s.Mid, r.High + s.High} }

// each applies a function that rises with its argument.
func (r Range) each(f func(float64) float64) Range { return Range{f(r.Low), f(r.Mid), f(r.High)} }

// String gives two digits or so, and no more: "52-61".
func (r Range) String() string {
	low, high := digits(r.Low), digits(r.High)
	if low == high {
		return low
	}
	return low + "-" + high
}

// digits writes a number with as many digits as an estimate deserves.
func digits(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x >= 0.1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.2g", x)
}
