package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
)

// release is how the documentation installs the chart; the plain manifests are that release.
const release = "hbmfs"

// made heads the plain manifests.
const made = "# The Helm chart with its own values. Made by `make chart`; change the chart instead.\n"

// notes is the template that Helm prints and does not install.
const notes = "NOTES.txt"

func renderVerb(ctx context.Context, out io.Writer, chart string, values []string) error {
	if len(values) > 1 {
		return errUsage
	}
	manifest, err := render(ctx, chart, strings.Join(values, ""))
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, made+manifest)
	return err
}

func chartVerb(ctx context.Context, out io.Writer, chart string, values []string) error {
	var problems error
	for _, file := range append([]string{""}, values...) {
		name := "own values"
		if file != "" {
			name = file
		}
		if err := lintChart(chart, file); err != nil {
			problems = errors.Join(problems, fmt.Errorf("lint %s with %s: %w", chart, name, err))
			continue
		}
		manifest, err := render(ctx, chart, file)
		if err == nil {
			var kinds []string
			if kinds, err = decode([]byte(manifest), checkObject); err == nil {
				fmt.Fprintf(out, "%s with %s: %s\n", chart, name, strings.Join(kinds, ", "))
			}
		}
		if err != nil {
			problems = errors.Join(problems, fmt.Errorf("render %s with %s: %w", chart, name, err))
		}
	}
	return problems
}

func refusedVerb(ctx context.Context, out io.Writer, chart string, values []string) error {
	var problems error
	for _, file := range values {
		if _, err := render(ctx, chart, file); err != nil {
			fmt.Fprintf(out, "%s: refused: %s\n", file, strings.Join(strings.Fields(err.Error()), " "))
		} else {
			problems = errors.Join(problems, fmt.Errorf("%s is not refused", file))
		}
	}
	return problems
}

// lintChart is `helm lint --strict`: Helm's recommendations count as well.
func lintChart(chart, values string) (problems error) {
	given, err := readValues(values)
	if err != nil {
		return err
	}
	for _, m := range lint.RunAll(chart, given, release).Messages {
		// An icon is for the catalogues of chart repositories, and there is none.
		if m.Severity > support.InfoSev {
			problems = errors.Join(problems, errors.New(m.Error()))
		}
	}
	return problems
}

// render gives the objects of an installation of the chart, ordered as Helm installs them.
func render(ctx context.Context, path, values string) (string, error) {
	chart, err := loader.LoadDir(path)
	if err != nil {
		return "", err
	}
	given, err := readValues(values)
	if err != nil {
		return "", err
	}
	options := common.ReleaseOptions{Name: release, Namespace: release, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, given, options, common.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Engine{Strict: true}.RenderWithContext(ctx, chart, all)
	if err != nil {
		return "", err
	}
	for name, text := range files {
		if filepath.Base(name) != notes {
			continue
		}
		if strings.TrimSpace(text) == "" || strings.Contains(text, "<no value>") {
			return "", fmt.Errorf("%s says %q", name, text)
		}
		delete(files, name)
	}
	hooks, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return "", err
	}
	if len(hooks) > 0 {
		return "", fmt.Errorf("%s is a hook: plain manifests cannot have it", hooks[0].Name)
	}
	var b strings.Builder
	for _, m := range manifests {
		fmt.Fprintf(&b, "---\n# Source: %s\n%s\n", m.Name, strings.TrimSpace(m.Content))
	}
	return b.String(), nil
}

func readValues(file string) (map[string]any, error) {
	if file == "" {
		return map[string]any{}, nil
	}
	values, err := common.ReadValuesFile(file)
	if err != nil {
		return nil, fmt.Errorf("read values %s: %w", file, err)
	}
	return values, nil
}
