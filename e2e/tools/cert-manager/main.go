// cert-manager's controllers for Issuers, ClusterIssuers and Certificates, as in its own cmd/controller, which the module
// proxy does not serve. Left out: ACME, Vault, Venafi, the gateway shim, its webhook and cainjector.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

func run() error {
	klog.InitFlags(nil)
	kubeconfig := flag.String("kubeconfig", "", "the API server")
	namespace := flag.String("cluster-resource-namespace", "cert-manager", "where the Secrets of ClusterIssuers are")
	flag.Parse()
	// What the harness starts ends with it, and leaves its last lines in the log.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx = klog.NewContext(ctx, klog.Background())

	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:         *kubeconfig,
		KubernetesAPIQPS:   100,
		KubernetesAPIBurst: 200,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: *namespace},
		CertificateOptions: controller.CertificateOptions{
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
	})
	if err != nil {
		return err
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	controllers := map[string]controller.Interface{}
	for name, construct := range controller.Known() {
		one, err := construct(factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		controllers[name] = one
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	shared.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())

	var running sync.WaitGroup
	failed := make(chan error, len(controllers))
	for name, one := range controllers {
		running.Go(func() {
			if err := one.Run(5, ctx); err != nil {
				failed <- fmt.Errorf("%s: %w", name, err)
				stop()
			}
		})
	}
	klog.InfoS("cert-manager runs", "controllers", len(controllers))
	running.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func main() {
	if err := run(); err != nil {
		klog.ErrorS(err, "cert-manager ended")
		klog.Flush()
		os.Exit(1)
	}
}
