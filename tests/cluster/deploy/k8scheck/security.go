package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// securityVerb judges every pod in the files by a level of the Pod Security Standards (baseline, restricted), as the
// admission controller of Kubernetes would. It prints one line for each pod.
func securityVerb(out io.Writer, level string, files []string) error {
	lv, err := api.ParseLevel(level)
	if err != nil {
		return err
	}
	checks, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return err
	}
	var problems error
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		_, err = decode(text, func(kind string, object runtime.Object) error {
			meta, pod := podOf(object)
			if pod == nil {
				return nil
			}
			result := policy.AggregateCheckResults(checks.EvaluatePod(api.LevelVersion{Level: lv, Version: api.LatestVersion()}, meta, pod))
			verdict := "admitted"
			if !result.Allowed {
				slices.Sort(result.ForbiddenReasons)
				verdict = "forbidden: " + strings.Join(result.ForbiddenReasons, ", ")
			}
			fmt.Fprintf(out, "%s: %s: %s: %s\n", file, kind, level, verdict)
			return nil
		})
		if err != nil {
			problems = errors.Join(problems, fmt.Errorf("%s: %w", file, err))
		}
	}
	return problems
}

// podOf returns the pod that an object is or makes, nil for none.
func podOf(object runtime.Object) (*metav1.ObjectMeta, *corev1.PodSpec) {
	switch o := object.(type) {
	case *corev1.Pod:
		return &o.ObjectMeta, &o.Spec
	case *appsv1.DaemonSet:
		return &o.Spec.Template.ObjectMeta, &o.Spec.Template.Spec
	case *appsv1.Deployment:
		return &o.Spec.Template.ObjectMeta, &o.Spec.Template.Spec
	case *batchv1.Job:
		return &o.Spec.Template.ObjectMeta, &o.Spec.Template.Spec
	}
	return nil, nil
}
