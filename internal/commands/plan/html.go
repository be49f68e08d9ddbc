package plan

import (
	_ "embed"
	"html/template"
	"io"
)

// The page's parts. page/README.md says how the chart libraries are built.
var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageStyle string
	//go:embed page/page.js
	pageScript string
	//go:embed page/charts.min.js
	pageCharts string
)

// WriteHTML writes the report as one page that needs nothing else: no network, no other file.
func (r *Report) WriteHTML(w io.Writer) error {
	page, err := template.New("page").Parse(pageHTML)
	if err != nil {
		return err
	}
	return page.Execute(w, struct {
		Report         *Report
		Style          template.CSS
		Script, Charts template.JS
	}{r, template.CSS(pageStyle), template.JS(pageScript), template.JS(pageCharts)})
}
