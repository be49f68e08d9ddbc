package plan

import (
	_ "embed"
	"html/template"
	"io"
)

// The page's parts. The chart libraries are the published files, unchanged: page/README.md says from where.
var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageStyle string
	//go:embed page/page.js
	pageScript string
	//go:embed page/echarts.min.js
	pageECharts string
	//go:embed page/echarts-gl.min.js
	pageEChartsGL string
)

// WriteHTML writes the report as one page that needs nothing else: no network, no other file.
func (r *Report) WriteHTML(w io.Writer) error {
	page, err := template.New("page").Parse(pageHTML)
	if err != nil {
		return err
	}
	return page.Execute(w, struct {
		Report             *Report
		Style              template.CSS
		Script             template.JS
		ECharts, EChartsGL template.JS
	}{r, template.CSS(pageStyle), template.JS(pageScript), template.JS(pageECharts), template.JS(pageEChartsGL)})
}
