package main

import (
	"fmt"
	"html"
	"strings"
)

// Geometry of the plot, in SVG user units.
const (
	plotWidth  = 1000
	labelWidth = 490
	barHeight  = 18
	rowHeight  = 32
	topMargin  = 44
	axisHeight = 66
)

// Colours of the bars.
const (
	reached = "#3d7a5a"
	missed  = "#b5523b"
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
		fill := reached
		if !c.met() {
			fill = missed
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
	legend := bottom + 40
	fmt.Fprintf(&b, `<rect x="12" y="%d" width="12" height="12" fill="%s"/><text x="30" y="%d" fill="#555555">target reached</text>`+"\n", legend-11, reached, legend)
	fmt.Fprintf(&b, `<rect x="142" y="%d" width="12" height="12" fill="%s"/><text x="160" y="%d" fill="#555555">target missed</text>`+"\n", legend-11, missed, legend)
	fmt.Fprintf(&b, `<text x="264" y="%d" fill="#555555">bar: median of the rounds; thin line: smallest to largest; black tick: target</text>`+"\n", legend)
	b.WriteString("</svg>\n")
	return b.String()
}
