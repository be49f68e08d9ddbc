package main

import (
	"fmt"
	"html"
	"strings"
)

// Geometry of the plot, in SVG user units.
const (
	plotWidth  = 960
	labelWidth = 440
	barHeight  = 18
	rowHeight  = 32
	topMargin  = 44
	axisHeight = 34
)

// plot draws one bar for each comparison: its median ratio, a whisker from least to greatest, a tick at the target.
func plot(comparisons []comparison) string {
	most := 1.1
	for _, c := range comparisons {
		most = max(most, c.Ratio.Max*1.05, c.Target)
	}
	x := func(ratio float64) float64 { return labelWidth + ratio/most*(plotWidth-labelWidth-20) }
	bottom := topMargin + rowHeight*len(comparisons)

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n",
		plotWidth, bottom+axisHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", plotWidth, bottom+axisHeight)
	fmt.Fprintf(&b, `<text x="12" y="24" font-size="15">Rate through the mount over the baseline's (1 = as fast)</text>`+"\n")
	for i, c := range comparisons {
		y := topMargin + rowHeight*i
		middle := y + barHeight/2
		fill := "#3d7a5a"
		if !c.met() {
			fill = "#b5523b"
		}
		fmt.Fprintf(&b, `<text x="12" y="%d">%s</text>`+"\n", y+14, html.EscapeString(c.Name))
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n",
			labelWidth, y, x(c.Ratio.Median)-labelWidth, barHeight, fill)
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#222222"/>`+"\n",
			x(c.Ratio.Min), x(c.Ratio.Max), middle, middle)
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#222222" stroke-width="2"/>`+"\n",
			x(c.Target), x(c.Target), y-3, y+barHeight+3)
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#ffffff">%.3f</text>`+"\n", labelWidth+8, y+14, c.Ratio.Median)
	}
	fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#888888" stroke-dasharray="4 3"/>`+"\n",
		x(1), x(1), topMargin-8, bottom)
	fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle" fill="#555555">1</text>`+"\n", x(1), bottom+14)
	fmt.Fprintf(&b, `<text x="12" y="%d" fill="#555555">bar: median; line: least to greatest; tick: target</text>`+"\n", bottom+24)
	b.WriteString("</svg>\n")
	return b.String()
}
